"""What clients ask before they connect: topics, agents, coordinators, leader epochs."""
