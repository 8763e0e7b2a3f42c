"""From a plan to tokens. Never imports the compiler; `manifest` and `weights.headers` import no torch."""
