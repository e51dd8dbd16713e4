"""What may be asked of the Compute API: policies, microversions, validation of bodies."""
