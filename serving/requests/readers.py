"""Threads that read what strangers send, which the page and all APIs share.

Nothing else waits for them: pictures are encoded on other threads.
"""

from serving.requests.workers import Workers, once_per_loop

# Calls that read, or wait for that: in all, and of one address.
MOST_READING, MOST_READING_EACH = 64, 8

# The threads of this event loop that parse large bodies of calls.
of_bodies = once_per_loop(lambda: Workers(1, MOST_READING, MOST_READING_EACH))
# The threads that read settings in pictures and in texts.
of_settings = once_per_loop(lambda: Workers(1, MOST_READING, MOST_READING_EACH))
# The threads that read and measure prompts.
of_prompts = once_per_loop(lambda: Workers(2, MOST_READING, MOST_READING_EACH))
