"""Who may do what and how much: ACLs, SCRAM credentials, delegation tokens and quotas, recorded and served."""
