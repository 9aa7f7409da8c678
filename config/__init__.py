"""Configuration in one typed place: declared in `settings`, read by `load`, written up by `docs`."""
