"""What tests share: servers, a model of a study, interleavings, cut connections."""
