"""What is too large for an answer: files by their content, each for its owner, for a while."""
