"""What the Compute API accepts: policies, microversions, validation of bodies."""
