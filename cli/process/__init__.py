"""One process of the service: a shell that opens, starts and stops the roles of process.roles."""
