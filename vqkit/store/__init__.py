"""The database: its verbs (`base`), its dialects (`sqlite`), and the thread that owns it."""
