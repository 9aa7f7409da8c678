-- Running processes that compact, in a worker or on Spark, and do not say that they support a level of a feature.
-- Locks: none. Idempotent: reads only. Cost: reads one row per process.
SELECT process FROM setting_reports
 WHERE reported_at >= wall_time() - report_lifetime() AND roles && ARRAY['compactor', 'spark']
   AND NOT EXISTS (SELECT FROM unnest(features, feature_levels) AS f (name, level)
                    WHERE f.name = %(feature)s AND f.level >= %(level)s)
 ORDER BY process
