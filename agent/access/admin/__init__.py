"""Access: ACLs, SCRAM credentials, delegation tokens and quotas, stored and listed."""
