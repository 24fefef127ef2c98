"""The clouds whose metadata service an agent knows how to ask."""

from enum import StrEnum


class Cloud(StrEnum):
    """One value per kind of metadata service."""

    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"


ENDPOINTS: dict[str, str] = {
    Cloud.AWS: "http://169.254.169.254",
    Cloud.AZURE: "http://169.254.169.254",
    Cloud.GCP: "http://metadata.google.internal",
}
