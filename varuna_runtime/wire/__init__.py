"""Generated protobuf stubs and the codec between them and `spec`."""
