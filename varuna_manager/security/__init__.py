"""Who may talk to the manager: its own certificate authority, tokens, and the secured listener."""
