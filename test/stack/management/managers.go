package management

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Managers are the managers of one management cluster, in the order in which
// they were asked for: core first.
type Managers struct {
	all []*Manager
}

// NewManagers prepares managers for what clusterctl has installed and leads
// the webhooks to them. It does not start them.
func (c *Cluster) NewManagers(ctx context.Context, programs ...Program) (*Managers, error) {
	if err := c.awaitKinds(ctx); err != nil {
		return nil, err
	}
	managers := &Managers{}
	webhooks := &redirection{client: c.Client, ports: map[string]int{}, ca: c.authority.pem}
	for _, program := range programs {
		manager, port, err := c.newManager(ctx, program)
		if err != nil {
			return nil, err
		}
		managers.all = append(managers.all, manager)
		webhooks.ports[manager.Namespace] = port
	}
	if err := webhooks.redirect(ctx); err != nil {
		return nil, err
	}
	return managers, nil
}

// awaitKinds waits until all kinds are served: a manager that starts before
// that fails or watches nothing.
func (c *Cluster) awaitKinds(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return c.await(ctx, "all kinds to be served", func(ctx context.Context) (bool, error) {
		var kinds apiextensionsv1.CustomResourceDefinitionList
		if err := c.Client.List(ctx, &kinds); err != nil {
			return false, err
		}
		return !slices.ContainsFunc(kinds.Items, func(kind apiextensionsv1.CustomResourceDefinition) bool {
			return !established(kind.Status.Conditions)
		}), nil
	})
}

func established(conditions []apiextensionsv1.CustomResourceDefinitionCondition) bool {
	return slices.ContainsFunc(conditions, func(condition apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue
	})
}

// All lists the managers.
func (m *Managers) All() []*Manager { return slices.Clone(m.all) }

// Ours are the names of the managers of our providers.
func (m *Managers) Ours() []string {
	var names []string
	for _, manager := range m.all {
		if manager.Name != Core {
			names = append(names, manager.Name)
		}
	}
	return names
}

// Get finds a manager by its name. It is nil when there is none.
func (m *Managers) Get(name string) *Manager {
	for _, manager := range m.all {
		if manager.Name == name {
			return manager
		}
	}
	return nil
}

// Start starts all managers at once and waits until all are ready.
func (m *Managers) Start(ctx context.Context) error {
	return m.each(func(manager *Manager) error { return manager.Start(ctx) })
}

// Kill ends all managers with SIGKILL.
func (m *Managers) Kill() error {
	return m.each((*Manager).Kill)
}

// Stop ends all managers with SIGTERM and waits until they are gone.
func (m *Managers) Stop(ctx context.Context) error {
	return m.each(func(manager *Manager) error { return manager.Stop(ctx) })
}

// Restart kills all managers, and then starts them again.
func (m *Managers) Restart(ctx context.Context) error {
	if err := m.Kill(); err != nil {
		return err
	}
	return m.Start(ctx)
}

// Check fails when a manager has ended by itself.
func (m *Managers) Check() error {
	failures := make([]error, 0, len(m.all))
	for _, manager := range m.all {
		failures = append(failures, manager.Check())
	}
	return errors.Join(failures...)
}

func (m *Managers) each(do func(*Manager) error) error {
	failures := make([]error, len(m.all))
	var group sync.WaitGroup
	for i, manager := range m.all {
		group.Go(func() {
			if err := do(manager); err != nil {
				failures[i] = fmt.Errorf("manager %s: %w", manager.Name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(failures...)
}
