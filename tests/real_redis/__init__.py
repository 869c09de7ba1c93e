"""What the tests in `test_real_redis` share: a real server to compare with, and its dump format."""
