local health = {status = "Progressing", message = "no manager has seen this spec"}
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
local is_true = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  is_true[condition.type] = condition.status == "True"
  if condition.type == "Ready" then
    health.message = condition.message
    is_true.Paused = is_true.Paused or condition.reason == "Paused"
  end
end
if is_true.Stalled then
  health.status = "Degraded"
elseif is_true.Suspended then
  health.status = "Suspended"
elseif is_true.Ready then
  health.status = "Healthy"
elseif is_true.Paused then
  health.status = "Suspended"
end
return health
