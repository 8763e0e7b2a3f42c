"""dsv41c: a declarative graph compiler for DeepSeek-V4.1-class models.

A YAML spec is validated into a dataflow graph whose state producers and consumers are checked, then lowered to a plan
(readable Python plus a manifest) that a small runtime executes.
"""

__version__ = "0.1.0"
