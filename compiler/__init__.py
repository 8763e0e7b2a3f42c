"""From a spec to a plan: text -> spec -> graph -> checks -> passes -> plan. Never imports torch."""
