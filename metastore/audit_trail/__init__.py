"""The audit trail of remote segments over table and bucket: its objects, and the reader of both.

Place: above metastore/api and storage; used by the compactor's job, the topic and the tools.
"""
