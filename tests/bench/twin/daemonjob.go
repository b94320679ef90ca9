package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Runs a pod on every eligible node, named after the DaemonJob and the node. A finished pod stays, so that
// its node gets no second pod. After completion, the completion time covers all nodes that existed before.
type daemonJobs struct{ client.Client }

func setUpDaemonJobs(manager ctrl.Manager) error {
	r := &daemonJobs{manager.GetClient()}
	return ctrl.NewControllerManagedBy(manager).
		For(&DaemonJob{}).
		Owns(&corev1.Pod{}).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(nodesThatDiffer())).
		Complete(r)
}

// A heartbeat of a node changes nothing.
func nodesThatDiffer() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(update event.UpdateEvent) bool {
		before, after := update.ObjectOld.(*corev1.Node), update.ObjectNew.(*corev1.Node)
		return !maps.Equal(before.Labels, after.Labels) || !equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
			isReady(before) != isReady(after)
	}}
}

func (r *daemonJobs) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var jobs DaemonJobList
	if err := r.List(ctx, &jobs); err != nil {
		return nil
	}
	requests := make([]reconcile.Request, len(jobs.Items))
	for i := range jobs.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&jobs.Items[i])
	}
	return requests
}

func (r *daemonJobs) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var job DaemonJob
	if err := r.Get(ctx, request.NamespacedName, &job); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if job.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	pods, err := podsOf(ctx, r, &job)
	if err != nil {
		return ctrl.Result{}, err
	}
	var nodes corev1.NodeList
	if err := r.List(ctx, &nodes); err != nil {
		return ctrl.Result{}, err
	}
	byName := make(map[string]*corev1.Pod, len(pods))
	for i := range pods {
		byName[pods[i].Name] = &pods[i]
	}

	status := DaemonJobStatus{ObservedGeneration: job.Generation, CompletionTime: job.Status.CompletionTime}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		name := fmt.Sprintf("%s-%s", job.Name, node.Name)
		pod := byName[name]
		switch {
		case pod != nil && pod.Status.Phase == corev1.PodSucceeded:
			status.Desired++
			status.Succeeded++
		case pod != nil && pod.Status.Phase == corev1.PodFailed:
			status.Desired++
			status.Failed++
		case pod != nil:
			status.Desired++
			status.Active++
		case job.Status.CompletionTime != nil && node.CreationTimestamp.Before(job.Status.CompletionTime):
			// The pod ran there and was deleted since.
			status.Desired++
			status.Succeeded++
		case isEligible(node, &job.Spec.Template.Spec):
			status.Desired++
			pod := newPod(name, "DaemonJob", &job, &job.Spec.Template)
			pin(pod, node.Name)
			if err := controllerutil.SetControllerReference(&job, pod, r.Scheme()); err != nil {
				return ctrl.Result{}, err
			}
			if err := r.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
				return ctrl.Result{}, err
			}
			status.Active++
		}
	}
	if status.CompletionTime == nil && status.Desired > 0 && status.Active == 0 {
		now := metav1.Now().Rfc3339Copy()
		status.CompletionTime = &now
	}

	if equality.Semantic.DeepEqual(job.Status, status) {
		return ctrl.Result{}, nil
	}
	job.Status = status
	return ctrl.Result{}, r.Status().Update(ctx, &job)
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

func isEligible(node *corev1.Node, spec *corev1.PodSpec) bool {
	if !isReady(node) || node.Spec.Unschedulable ||
		!labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		return false
	}
	return !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
			!slices.ContainsFunc(spec.Tolerations, func(toleration corev1.Toleration) bool {
				return toleration.Key == taint.Key && (toleration.Operator == corev1.TolerationOpExists || toleration.Value == taint.Value)
			})
	})
}

// Restricts the pod to this node.
func pin(pod *corev1.Pod, node string) {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
			}},
		}}},
	}}
}
