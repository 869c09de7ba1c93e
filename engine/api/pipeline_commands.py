"""Every command as a method of a pipeline, which queues it and returns the pipeline.

Type checkers read `pipeline_commands.pyi`, which `scripts/stubs.py` makes from the sources.
"""

from typing import Any

from streamkeep.engine.api.stream_commands import StreamCommands


class PipelineCommands(StreamCommands[Any]):
    """The commands of Redis Streams, each of which returns the pipeline that it was queued in."""
