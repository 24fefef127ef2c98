"""The adapter of AWS: an Auto Scaling group on boto3, which is imported with the first call."""
