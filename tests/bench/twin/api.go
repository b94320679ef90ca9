package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The fields of both kinds that this manager reads and writes.

type PodSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PodSetSpec   `json:"spec,omitempty"`
	Status            PodSetStatus `json:"status,omitempty"`
}

type PodSetSpec struct {
	Replicas int32                  `json:"replicas"`
	Template corev1.PodTemplateSpec `json:"template,omitempty"`
}

type PodSetStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	Replicas           int32 `json:"replicas"`
	ReadyReplicas      int32 `json:"readyReplicas"`
}

type PodSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodSet `json:"items"`
}

type DaemonJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              DaemonJobSpec   `json:"spec,omitempty"`
	Status            DaemonJobStatus `json:"status,omitempty"`
}

type DaemonJobSpec struct {
	Template corev1.PodTemplateSpec `json:"template"`
}

type DaemonJobStatus struct {
	ObservedGeneration int64        `json:"observedGeneration,omitempty"`
	Desired            int32        `json:"desired"`
	Active             int32        `json:"active"`
	Succeeded          int32        `json:"succeeded"`
	Failed             int32        `json:"failed"`
	CompletionTime     *metav1.Time `json:"completionTime,omitempty"`
}

type DaemonJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DaemonJob `json:"items"`
}

func (in *PodSet) DeepCopyObject() runtime.Object {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.Template.DeepCopyInto(&out.Spec.Template)
	return &out
}

func (in *PodSetList) DeepCopyObject() runtime.Object {
	out := *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]PodSet, len(in.Items))
	for i := range in.Items {
		out.Items[i] = *in.Items[i].DeepCopyObject().(*PodSet)
	}
	return &out
}

func (in *DaemonJob) DeepCopyObject() runtime.Object {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.Template.DeepCopyInto(&out.Spec.Template)
	out.Status.CompletionTime = in.Status.CompletionTime.DeepCopy()
	return &out
}

func (in *DaemonJobList) DeepCopyObject() runtime.Object {
	out := *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]DaemonJob, len(in.Items))
	for i := range in.Items {
		out.Items[i] = *in.Items[i].DeepCopyObject().(*DaemonJob)
	}
	return &out
}

func addKinds(scheme *runtime.Scheme) {
	podSets := schema.GroupVersion{Group: "batch.tutorial.kubebuilder.io", Version: "v1"}
	scheme.AddKnownTypes(podSets, &PodSet{}, &PodSetList{})
	metav1.AddToGroupVersion(scheme, podSets)
	daemonJobs := schema.GroupVersion{Group: "dj.dysproz.io", Version: "v1"}
	scheme.AddKnownTypes(daemonJobs, &DaemonJob{}, &DaemonJobList{})
	metav1.AddToGroupVersion(scheme, daemonJobs)
}
