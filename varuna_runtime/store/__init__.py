"""Object store seam: keys and bytes, put-if-absent; nothing here knows what is stored."""
