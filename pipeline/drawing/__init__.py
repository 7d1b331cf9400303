"""Drawing requests: from checked settings to finished pictures, through the slots."""
