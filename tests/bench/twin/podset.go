package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Keeps spec.replicas pods, named after the PodSet and a number, so that a stale cache creates no duplicates.
type podSets struct{ client.Client }

func setUpPodSets(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		For(&PodSet{}).
		Owns(&corev1.Pod{}).
		Complete(&podSets{manager.GetClient()})
}

func (r *podSets) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var set PodSet
	if err := r.Get(ctx, request.NamespacedName, &set); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if set.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	pods, err := podsOf(ctx, r, &set)
	if err != nil {
		return ctrl.Result{}, err
	}
	names := make(map[string]bool, len(pods))
	var counted []*corev1.Pod
	status := PodSetStatus{ObservedGeneration: set.Generation}
	for i := range pods {
		pod := &pods[i]
		names[pod.Name] = true
		switch {
		case pod.DeletionTimestamp != nil:
		case isFinished(pod):
			if err := client.IgnoreNotFound(r.Delete(ctx, pod)); err != nil {
				return ctrl.Result{}, err
			}
		default:
			counted = append(counted, pod)
			status.Replicas++
			if isTrue(pod.Status.Conditions, corev1.PodReady) {
				status.ReadyReplicas++
			}
		}
	}

	missing := int(set.Spec.Replicas) - len(counted)
	for number := 0; missing > 0; number++ {
		name := fmt.Sprintf("%s-%d", set.Name, number)
		if names[name] {
			continue
		}
		pod := newPod(name, "PodSet", &set, &set.Spec.Template)
		if err := controllerutil.SetControllerReference(&set, pod, r.Scheme()); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
			return ctrl.Result{}, err
		}
		missing--
	}
	for i := 0; i < -missing; i++ {
		if err := client.IgnoreNotFound(r.Delete(ctx, counted[i])); err != nil {
			return ctrl.Result{}, err
		}
	}

	if equality.Semantic.DeepEqual(set.Status, status) {
		return ctrl.Result{}, nil
	}
	set.Status = status
	return ctrl.Result{}, r.Status().Update(ctx, &set)
}
