-- Which feature levels a running process supports, so that a level is raised only when all compactors have it. NULL: its
-- version does not say. One element per feature in each of the two.
ALTER TABLE setting_reports ADD COLUMN features text[], ADD COLUMN feature_levels smallint[];
