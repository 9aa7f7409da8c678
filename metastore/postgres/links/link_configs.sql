-- The configs of all links.
SELECT resource_name, name, value FROM configs WHERE resource_type = link_resource() ORDER BY resource_name, name
