"""What tests share, such as servers, a model of a study, interleavings, cut connections."""
