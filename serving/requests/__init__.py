"""The life of a request: admission, queue, record, estimates."""
