"""How a model writes: its chat template, its reasoning, its tool calls, asked of the template."""
