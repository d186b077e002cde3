"""Settings of the tests of octavo.text."""

from hypothesis import settings

# A shared machine stalls now and then; how long one example takes is no property of the code.
settings.register_profile("text", deadline=None)
settings.load_profile("text")
