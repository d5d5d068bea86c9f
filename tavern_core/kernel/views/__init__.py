"""Views: plugins get them instead of the host's own objects, which cannot be reached through them."""
