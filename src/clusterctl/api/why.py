"""Why a run waits, failed or is slow."""

from clusterctl.diagnosis.diagnose import Diagnosis, diagnose, to_json

__all__ = ["Diagnosis", "diagnose", "to_json"]
