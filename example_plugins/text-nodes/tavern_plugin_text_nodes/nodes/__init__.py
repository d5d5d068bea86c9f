"""The nodes of this plugin: the host searches the modules of this folder for them."""
