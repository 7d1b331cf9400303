"""What suits each kind of model: styles, examples and small pictures of them."""
