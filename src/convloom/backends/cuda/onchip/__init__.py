"""Small networks on chip: from a chain's stages to shared memory, tiles and launches.

``stages`` reads the chain, ``tiling`` shares the products among warps, ``memory`` places maps and
weights, ``plan`` puts them together. What does not qualify raises ``UnfitError`` with the reason.
"""
