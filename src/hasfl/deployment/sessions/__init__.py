"""Sessions: streams of questions and answers between parties, and how a worker is told of a session."""
