"""`headrace bench`: what the whole and its parts do, measured on the machine at hand."""
