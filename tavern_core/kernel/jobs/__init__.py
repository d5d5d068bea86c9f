"""Calls that go on in the background: kept, followed, answered, cancelled, from any process."""
