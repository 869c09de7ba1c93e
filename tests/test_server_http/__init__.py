"""Tests of `server.http`: the routes, what guards them, and the event stream."""
