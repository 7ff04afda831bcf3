<?php
final class Router
{
    /** @var Route[] */
    private array $routes = [];

    public function add(string $method, string $path, string $page): void
    {
        $this->routes[] = new Route($method, $path, $page);
    }

    public function find(Request $request): ?string
    {
        foreach ($this->routes as $route) {
            if ($route->fits($request)) {
                return $route->page;
            }
        }
        return null;
    }
}
