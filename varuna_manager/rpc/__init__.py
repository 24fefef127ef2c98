"""gRPC services: protobuf stops here."""
