"""The pages of the console: one module for each noun; each reads, and renders a template of the same name."""
