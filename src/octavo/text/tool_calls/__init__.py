"""Tool calls in the text of a reply: how each family of models writes them, and how they are read as they come."""
