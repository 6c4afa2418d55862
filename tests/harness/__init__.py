"""What tests share: databases, a model of a study, interleavings, cut connections."""
