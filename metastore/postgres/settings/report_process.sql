-- report_settings, and the highest levels of features that the process supports, one element each in the last two.
-- Locks, cost: as report_settings; one more update at the first report. Idempotent: yes.
CREATE OR REPLACE FUNCTION report_process(
    p_incarnation_id uuid, p_process text, p_roles text[], p_node_id int, p_names text[], p_proposals text[],
    p_features text[], p_levels smallint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM report_settings(p_incarnation_id, p_process, p_roles, p_node_id, p_names, p_proposals);
    UPDATE setting_reports SET features = p_features, feature_levels = p_levels
     WHERE incarnation_id = p_incarnation_id
       AND (features, feature_levels) IS DISTINCT FROM (p_features, p_levels);
END $$;
