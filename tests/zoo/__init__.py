"""The toy networks of all tests, each of them once.

`parts` has what they are made of and what tests ask of any network. `convolutional`,
`transformers`, `detectors`, `image_text` and `language` have networks by kind, `by_hand` those
whose numbers are worked out by hand, `audited` those whose reasons are known, and `hostile` those
that fail, wait or take too much. `factories` has the functions that `factory:` sources name.
"""
