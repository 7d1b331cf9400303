"""PNG files, settings in pictures, previews and moderation."""
