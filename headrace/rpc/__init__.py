"""The gRPC side of Headrace: contracts (`v1`), options, channels, servers, chunking of weights.

Names are imported from their modules, so that who needs the chunks alone does not pay for importing gRPC.
"""
