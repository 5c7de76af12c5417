"""What commands share before anything runs: the installation, presets, overrides, output folders, custom parts."""
