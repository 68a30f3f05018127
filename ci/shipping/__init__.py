"""What ships with the image: SBOM, provenance, signature, their check, the scan.

Run by ci/sbom, ci/provenance, ci/sign, ci/verify and ci/scan.
"""
